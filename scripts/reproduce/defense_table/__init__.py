"""Every defense of gradients and labels against every label attack, on one model and one data set."""
